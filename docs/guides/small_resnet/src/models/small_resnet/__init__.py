"""A small ResNet, the example of docs/guides/add_a_model.md."""
