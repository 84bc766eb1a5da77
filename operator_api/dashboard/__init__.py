"""The pages on which an operator sees and starts rounds: rendered here, kept live by server-sent events."""
