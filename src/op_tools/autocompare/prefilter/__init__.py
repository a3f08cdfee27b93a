"""A cheap check on the device that passes most calls."""
