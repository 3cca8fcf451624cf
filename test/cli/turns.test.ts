import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { actionJson, observationJson } from '../../src/tables/turns.ts';

describe('turns in tables', () => {
  const shown = (init: MessageInitShape<typeof StepSchema>): { action: unknown; observation: unknown } => {
    const step = create(StepSchema, init);
    return {
      action: JSON.parse(actionJson(step) ?? 'null'),
      observation: JSON.parse(observationJson(step) ?? 'null'),
    };
  };
  const call = (id: string) => ({ type: 'tool_call', name: 'run', callId: id, content: { json: '{"x": 1}' } });
  const result = (callId: string) => ({ type: 'tool_result', callId, content: { json: '{"ok":true}' } });

  it.each([
    ['openai.chat', [{ role: 'assistant', content: 'hi' }]],
    ['openai.responses', [{ type: 'message', content: [{ type: 'output_text', text: 'hi' }] }, { type: 'reasoning' }]],
    ['anthropic.messages', [{ role: 'assistant', content: [{ type: 'text', text: 'hi' }, { type: 'tool_use' }] }]],
  ])('V9: a reply of %s has one shape with any number of calls', (name, messages) => {
    for (const ids of [[], ['c0'], ['c0', 'c1']]) {
      const reply = { type: 'message', name, content: { json: JSON.stringify(messages) } };
      expect(shown({ actions: [reply, ...ids.map(call)], observations: ids.map(result) })).toEqual({
        action: { text: 'hi', tool_calls: ids.map((id) => ({ id, name: 'run', arguments: '{"x": 1}' })), messages },
        observation: { messages: [], tool_results: ids.map((id) => ({ id, is_error: false, content: { ok: true } })) },
      });
    }
  });

  it.each([
    ['openai.chat', { choices: [{ message: { role: 'assistant', content: 'hi' } }], usage: { total_tokens: 3 } }],
    ['openai.responses', { status: 'completed', output: [{ type: 'message', role: 'assistant', content: 'hi' }] }],
    ['anthropic.messages', { role: 'assistant', content: 'hi', stop_reason: 'end_turn' }],
  ])('V9: of a whole reply of %s, the messages are listed', (name, reply) => {
    const { action } = shown({ actions: [{ type: 'message', name, content: { json: JSON.stringify(reply) } }] });
    const message = expect.objectContaining({ role: 'assistant', content: 'hi' });
    expect(action).toEqual({ text: 'hi', tool_calls: [], messages: [message] });
  });

  it('V9: messages before a reply are listed, also if they share an observation', () => {
    const said = [
      { role: 'user', content: 'a' },
      { role: 'user', content: 'b' },
    ];
    const together = { type: 'prompt_message', content: { json: JSON.stringify(said) } };
    const alone = { type: 'message', content: { json: JSON.stringify(said[0]) } };
    expect(shown({ observations: [together, alone] }).observation).toEqual({
      messages: [...said, said[0]],
      tool_results: [],
    });
  });

  it('V9: calls without a message have the same shape, and arguments that are no JSON stay text', () => {
    const broken = { ...call('c1'), content: { text: '{"x": 1' } };
    expect(shown({ actions: [{ type: 'text', content: { text: 'done' } }, broken] })).toEqual({
      action: { text: 'done', tool_calls: [{ id: 'c1', name: 'run', arguments: '{"x": 1' }], messages: [] },
      observation: { messages: [], tool_results: [] },
    });
  });

  it('V9: messages before a turn, and what the environment returned beside them, are members', () => {
    const said = { role: 'user', content: 'go' };
    const message = { type: 'message', content: { json: JSON.stringify(said) } };
    expect(shown({ observations: [message] }).observation).toEqual({ messages: [said], tool_results: [] });
    expect(shown({ observations: [message, { content: { json: '5' } }] }).observation).toEqual({
      messages: [said],
      tool_results: [],
      observation: 5,
    });
  });

  it('V9: leaves that are named like messages are no turn', () => {
    for (const type of ['message', 'tool_call', 'tool_result']) {
      const leaves = [
        { type, content: { text: 'hi' } },
        { type: 'at', content: { json: '1' } },
      ];
      const value = { [type]: 'hi', at: 1 };
      expect(shown({ actions: leaves, observations: leaves })).toEqual({ action: value, observation: value });
    }
  });
});
