"""The trainer: Celery workers that train in simulated clients' place, aggregate and evaluate."""
