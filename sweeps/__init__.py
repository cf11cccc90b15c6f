"""What is compared: named sweeps, the command line, the Tune driver, statistics and reports."""
