"""Scans: recurrences over time behind one signature each, as a loop (the meaning) and in fast forms."""
