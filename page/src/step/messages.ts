import type { Content, Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';

/** A message of a conversation, in whatever format it was recorded. */
export interface Message {
  readonly role: string;
  readonly parts: readonly Part[];
}

/** A piece of a message. A `note` stands for what is no text. */
export interface Part {
  readonly kind: 'text' | 'reasoning' | 'call' | 'result' | 'note';
  readonly text: string;
  /** Name of the called tool. */
  readonly name?: string;
  readonly isError?: boolean;
}

/** Types of actions and observations that hold messages: `turn()` and the sessions of agent frameworks record them. */
const [MESSAGE, BEFORE, RESULT] = ['message', 'prompt_message', 'tool_result'];

/** Returns the messages of a step, in the order in which they were sent. Empty if it is no part of a conversation. */
export function messagesOf({ actions, observations }: Step): Message[] {
  const of = (type: string | undefined) => observations.filter((each) => each.type === type);
  const replies = actions.filter(({ type }) => type === MESSAGE).flatMap(({ content }) => messagesIn(content));
  const results = of(RESULT).map(({ content, isError }) => resultOf(content, isError));
  const said = (type: string | undefined) => of(type).flatMap(({ content }) => messagesIn(content));
  return [...said(BEFORE), ...replies, ...results, ...said(MESSAGE)];
}

function resultOf(content: Content | undefined, isError: boolean): Message {
  const [json, text] = [content?.json, content?.text];
  const shown = json === undefined ? (text ?? noteOf(content)) : textOf(parsed(json));
  return { role: 'tool', parts: [{ kind: 'result', text: shown, isError }] };
}

function messagesIn(content: Content | undefined): Message[] {
  if (content?.json !== undefined) return messagesFrom(parsed(content.json));
  if (content?.text !== undefined) return [{ role: 'user', parts: [{ kind: 'text', text: content.text }] }];
  return content === undefined ? [] : [{ role: '', parts: [{ kind: 'note', text: noteOf(content) }] }];
}

function noteOf(content: Content | undefined): string {
  return content === undefined ? '' : content.mediaType || 'content';
}

/** Reads messages and replies of OpenAI's chat and responses formats and of Anthropic's, and lists of them. */
function messagesFrom(value: unknown): Message[] {
  if (Array.isArray(value)) return value.flatMap(messagesFrom);
  const found = membersOf(value);
  if (found === undefined) return [];
  if (Array.isArray(found.choices)) return messagesFrom(membersOf(found.choices[0])?.message);
  if (Array.isArray(found.output) && found.type === undefined) return messagesFrom(found.output);
  const type = text(found.type);
  if (type === 'function_call_output' || type.endsWith('_call_output'))
    return [{ role: 'tool', parts: [{ kind: 'result', text: textOf(found.output) }] }];
  if (type === 'reasoning') {
    const summary = textOf(found.summary) || textOf(found.content);
    return [{ role: 'assistant', parts: [{ kind: 'reasoning', text: summary }] }];
  }
  if (type.endsWith('_call')) return [{ role: 'assistant', parts: [callOf(found, type.replace(/_call$/u, ''))] }];
  if (found.role === undefined && found.content === undefined) return [];
  const role = text(found.role) || 'assistant';
  const parts = partsOf(found.content, role === 'tool' || role === 'function');
  const calls = Array.isArray(found.tool_calls) ? found.tool_calls : [];
  return [{ role, parts: [...parts, ...calls.flatMap(chatCall)] }];
}

function chatCall(value: unknown): Part[] {
  const found = membersOf(value);
  const called = membersOf(found?.function) ?? membersOf(found?.custom) ?? found;
  return called === undefined ? [] : [callOf(called, '')];
}

function callOf(found: Members, kind: string): Part {
  const given = found.arguments ?? found.input ?? found.args ?? found.action ?? '';
  const shown = typeof given === 'string' ? given : JSON.stringify(given);
  return { kind: 'call', name: text(found.name) || kind, text: shown };
}

function partsOf(content: unknown, isResult: boolean): Part[] {
  const kind = isResult ? 'result' : 'text';
  if (!Array.isArray(content)) {
    const shown = textOf(content);
    return shown === '' ? [] : [{ kind, text: shown }];
  }
  return content.flatMap((each): Part[] => {
    const block = membersOf(each);
    const type = text(block?.type);
    if (typeof each === 'string') return [{ kind, text: each }];
    if (block === undefined) return [];
    if (typeof block.text === 'string') return [{ kind, text: block.text }];
    if (typeof block.refusal === 'string') return [{ kind, text: block.refusal }];
    if (type === 'thinking') return [{ kind: 'reasoning', text: text(block.thinking) }];
    if (type.endsWith('tool_use')) return [callOf(block, type)];
    if (type.endsWith('tool_result'))
      return [{ kind: 'result', text: textOf(block.content), isError: block.is_error === true }];
    return [{ kind: 'note', text: type }];
  });
}

/** Returns the text of a value: that of its parts, or its JSON. */
function textOf(value: unknown): string {
  if (typeof value === 'string') return value;
  if (value === undefined || value === null) return '';
  if (!Array.isArray(value)) return JSON.stringify(value);
  const texts = value.map((each) => {
    const block = membersOf(each);
    return text(block?.text) || (block === undefined ? textOf(each) : `[${text(block.type)}]`);
  });
  return texts.join('\n');
}

/** What the formats call the members of messages, their parts and calls. */
type Members = Readonly<
  Partial<
    Record<
      | 'action'
      | 'args'
      | 'arguments'
      | 'choices'
      | 'content'
      | 'custom'
      | 'function'
      | 'input'
      | 'is_error'
      | 'message'
      | 'name'
      | 'output'
      | 'refusal'
      | 'role'
      | 'summary'
      | 'text'
      | 'thinking'
      | 'tool_calls'
      | 'type',
      unknown
    >
  >
>;

function membersOf(value: unknown): Members | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Members) : undefined;
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}
