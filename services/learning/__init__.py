"""The only code that uses torch: networks, data sets, local update, aggregation, evaluation."""
