"""Records of runs and their views: tables, pictures, text, the Paddle record."""
