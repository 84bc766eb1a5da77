"""The rules and the arithmetic of FedCS: pure functions of their arguments, no I/O, no clock."""
