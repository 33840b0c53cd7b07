"""From records to knowledge: statistics, figures and the report."""
