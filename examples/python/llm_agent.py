client = ab.connect()
with client.trajectory(task="swe-42", labels={"model": MODEL}) as t:      # exit: completed; exception: failed, with its text
    t.reset(messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}])
    while not t.done:
        reply = llm.chat.completions.create(model=MODEL, messages=t.messages, tools=TOOLS, logprobs=True,
                                            extra_body={"return_token_ids": True})
        with t.turn(reply) as turn:                                       # text, tool calls, prompt and reply tokens, logprobs, usage
            for call in turn.tool_calls:
                turn.result(call, run_tool(call))                         # linked by call id; an exception is stored as is_error
            turn.reward, turn.terminated = judge(t.messages)

again = client.branch(t, at=3, name="what if it had asked")               # the same messages and tokens up to turn 3
print(again.tokens())                                                     # input_ids, loss_mask, logprobs; nothing is tokenized again
