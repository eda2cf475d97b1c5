"""How large what is read may be. Nothing is imported here: the command line shows these numbers in its help."""

MOST_BYTES = 2 << 30  # of a file that is read whole, and of the numbers that a user's file may come to
