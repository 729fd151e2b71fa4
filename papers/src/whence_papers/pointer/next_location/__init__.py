"""Next-location prediction: visits, histories, baselines, metrics, and the pointer-generator transformer."""
