"""howfar answers: how far is your database?"""

__version__ = "0.1.0"
