"""The command line, configuration files and run directories."""
