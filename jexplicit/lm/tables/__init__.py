"""Tables of rows: how they are stored, and how many positions read them on devices."""
