"""The search for better recipes, on the last 10,000 training images of MNIST; the test images are never looked at."""
