"""What a run would do on hardware that is not here."""
