"""Hand a policy version's weights from the trainer to the replicas, whole or not at all."""
