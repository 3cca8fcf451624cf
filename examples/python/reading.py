episodes = client.episodes(task="CartPole-v1", status="completed", min_reward=20)       # lazy: nothing is read yet
for e in episodes:                                            # one stream for any number of episodes
    e.observations, e.actions, e.rewards                      # arrays of length T + 1, T, T
frame = episodes.steps().to_pandas()                          # a row per step; to_arrow(): RecordBatchReader (polars, duckdb)
hf = episodes.to_hf()                                         # a datasets.IterableDataset
loader = torch.utils.data.DataLoader(episodes.to_torch(shuffle=1000), num_workers=4)     # sharded by worker and rank
episodes.to_minari("cartpole/main-v0", env="CartPole-v1")
batch = client.run("qwen3-vl-cua").rollouts(stage=0, success=True).tokens(pad_id=0, max_length=8192)
