"""What a person sees: records turned into panels, and the page around them. Never reaches into the engine."""
