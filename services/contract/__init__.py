"""The wire format: pydantic schemas shared by the API and every client of it."""
