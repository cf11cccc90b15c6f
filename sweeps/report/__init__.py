"""What a sweep's folder says: tables, figures, exports, a page that holds it all (`python -m sweeps.report FOLDER`)."""
