"""What is kept: tables, repositories, the unit of work, and the store of models."""
