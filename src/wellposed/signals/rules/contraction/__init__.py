"""Sums of products: linear maps, convolutions, embeddings, recurrent cells; forward and backward."""
