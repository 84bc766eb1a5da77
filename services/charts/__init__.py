"""Pictures of what the service decides, drawn with matplotlib."""
