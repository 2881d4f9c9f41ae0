"""Any program that speaks the OpenAI API, run inside the rollout's sandbox."""
