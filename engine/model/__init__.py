"""What computes: configuration, weights, the forward pass, sampling."""
