import type { Action, Content, Observation, Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { contentJson, itemsJson } from './column.ts';

/**
 * The values of a turn have one shape, whatever the number of calls, as in the Python package (docs/python.md). The
 * action has `text`, `tool_calls` and `messages`. The observation has `messages` and `tool_results`, and `observation`
 * if the environment returned one too.
 */

/** Returns the value of a step's actions as JSON text. Null if there are none. */
export function actionJson({ actions }: Step): string | null {
  if (!isTurn(actions)) return itemsJson(actions);
  let text = '';
  const calls: string[] = [];
  const messages: unknown[] = [];
  for (const action of actions) {
    const { type, name, callId, content } = action;
    if (isCall(action)) calls.push(JSON.stringify({ id: callId, name, arguments: writtenText(content) }));
    else if (content?.text !== undefined) text += content.text;
    else if (type === 'message' && content !== undefined) {
      const said = messagesOf(parsed(contentJson(content)));
      messages.push(...said);
      text += textOf(said);
    }
  }
  return `{"text":${JSON.stringify(text)},"tool_calls":[${calls.join(',')}],"messages":${JSON.stringify(messages)}}`;
}

/** Returns the value of a step's observations as JSON text. Null if there are none. */
export function observationJson({ actions, observations }: Step): string | null {
  const isAfterCalls = isTurn(actions);
  const results = observations.filter((each) => isResult(each, isAfterCalls));
  const messages = observations.filter((each) => isMessage(each) && !results.includes(each));
  const others = observations.filter((each) => !messages.includes(each) && !results.includes(each));
  if (messages.length + results.length === 0 && !isAfterCalls) return itemsJson(others);
  // Several messages can share an observation.
  const said = messages.map(({ content }) => contentJson(content).replace(/^\[(.*)\]$/s, '$1'));
  const resulted = results.map(({ callId, isError, content }) => {
    return `{"id":${JSON.stringify(callId)},"is_error":${isError},"content":${contentJson(content)}}`;
  });
  const other = others.length === 0 ? '' : `,"observation":${itemsJson(others)}`;
  return `{"messages":[${said.join(',')}],"tool_results":[${resulted.join(',')}]${other}}`;
}

function isTurn(actions: readonly Action[]): boolean {
  const [first] = actions;
  return (first?.type === 'message' && first.name !== '') || actions.some(isCall);
}

// The leaf of an object can be named like a call, a result or a message. It has neither name nor id.

function isCall({ type, name, callId }: Action): boolean {
  return callId !== '' || (type === 'tool_call' && name !== '');
}

function isResult({ type, callId }: Observation, isAfterCalls: boolean): boolean {
  return callId !== '' || (isAfterCalls && type === 'tool_result');
}

function isMessage({ type, content }: Observation): boolean {
  const isSaid = type === 'message' || type === 'prompt_message';
  return isSaid && (content?.json === undefined ? /json/.test(content?.mediaType ?? '') : /^\[?\{/.test(content.json));
}

/** Returns arguments as the model wrote them. */
function writtenText(content: Content | undefined): string {
  return content?.text ?? content?.json ?? (content === undefined ? '' : contentJson(content));
}

/**
 * Returns the messages of a recorded reply, which is whole: a reply of OpenAI's chat or responses format or of
 * Anthropic's, a list of messages, or a message.
 */
function messagesOf(said: unknown): readonly unknown[] {
  const choices = memberOf(said, 'choices');
  if (Array.isArray(choices)) return [memberOf(choices[0], 'message') ?? []].flat();
  const output = memberOf(said, 'output');
  if (Array.isArray(output)) return output;
  if (memberOf(said, 'stop_reason') === undefined) return [said].flat();
  return [{ role: memberOf(said, 'role') ?? 'assistant', content: memberOf(said, 'content') }];
}

/** Returns the text of messages of OpenAI's chat and responses formats, and of Anthropic's. */
function textOf(messages: readonly unknown[]): string {
  const contents = messages.flatMap((message) => memberOf(message, 'content') ?? []);
  return contents.map((part) => (typeof part === 'string' ? part : partText(part))).join('');
}

function partText(part: unknown): string {
  const text = memberOf(part, 'text');
  return ['text', 'output_text'].includes(String(memberOf(part, 'type'))) && typeof text === 'string' ? text : '';
}

function memberOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>)[name] : undefined;
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}
