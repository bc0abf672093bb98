"""What several chapters share: recorded runs, metrics, losslessness, tasks, published sets, stores."""
