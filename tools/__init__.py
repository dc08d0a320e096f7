"""Tools of the documentation: its site, its tables, its executed notebooks."""
