"""OpAutoCompare: is a result right?"""
