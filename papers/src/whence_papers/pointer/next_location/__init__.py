"""Where someone goes next: visits, histories, baselines, metrics, and the pointer-generator transformer for them."""
