"""Hand a policy version's weights from the trainer to the replicas: files or shared memory, whole or not at all."""
