"""What is measured on a trained model, one file each."""
