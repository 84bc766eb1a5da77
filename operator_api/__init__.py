"""The operator's HTTP API and the `fedcs` command."""
