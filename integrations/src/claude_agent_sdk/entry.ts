import type { SessionStoreEntry } from '@anthropic-ai/claude-agent-sdk';
import { LIMITS } from '../../../gen/es/anabranch/v1/limits.js';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { isTextWithin, jsonText } from '../json_text.ts';
import type { PatientClient } from '../patient_client.ts';
import { jsonOf, type NewStep, roomOfShown } from '../step_batches.ts';

/** A block of the content of a message, as far as steps show it. */
interface Block {
  readonly type?: unknown;
  readonly id?: unknown;
  readonly name?: unknown;
  readonly input?: unknown;
  readonly tool_use_id?: unknown;
  readonly is_error?: unknown;
}

/** The last observation of a step has the entry, without its message. */
const ENTRY = 'entry';
/** Begins the own steps of a fork. */
const FORK = 'fork';

/** What a fork changes in the entries that it shares. */
export interface Fork {
  readonly sessionId: string;
  /** The session that was forked. */
  readonly from: string;
  readonly timestamp: string;
}

/** Returns the step of an entry, whose number is 0. Throws TypeError for an entry that JSON cannot hold. */
export function stepOf(entry: SessionStoreEntry, call: string): NewStep {
  const uuid = uuidOf(entry);
  const labels = uuid === undefined ? { call } : { uuid };
  const role = roleOf(entry);
  if (role === undefined)
    return { labels, observations: [{ type: ENTRY, content: { json: jsonText(entry, 'the entry') } }] };
  const json = jsonText(entry.message, 'the message of the entry');
  const rest = { type: ENTRY, content: { json: jsonText({ ...entry, message: null }, 'the entry') } };
  const blocks = blocksOf(entry.message);
  if (role === 'assistant') {
    const reply = { type: 'message', name: 'anthropic.messages', content: { json } };
    return { labels, actions: [reply, ...blocks.flatMap(toolCallOf)].filter(roomOfShown()), observations: [rest] };
  }
  const result = blocks.find(({ type }) => type === 'tool_result');
  const callId = isCallId(result?.tool_use_id) ? result.tool_use_id : '';
  const given = { type: 'message', callId, isError: result?.is_error === true, content: { json } };
  return { labels, observations: [given, rest] };
}

/** Returns the step that begins a fork. */
export function stepOfFork(fork: Fork, call: string): NewStep {
  return { labels: { call }, observations: [{ type: FORK, content: { json: jsonText(fork, 'the fork') } }] };
}

/** Returns what a step has: an entry, or the beginning of a fork. Undefined for a step that no session store wrote. */
export async function entryOf(
  client: PatientClient,
  { actions, observations }: Step,
): Promise<{ readonly entry: SessionStoreEntry } | { readonly fork: Fork } | undefined> {
  const last = observations.at(-1);
  const json = await jsonOf(client, last?.content);
  if (json === undefined) return undefined;
  if (last?.type === FORK) return { fork: JSON.parse(json) };
  if (last?.type !== ENTRY) return undefined;
  const entry = JSON.parse(json);
  const message = actions[0]?.content ?? (observations.length > 1 ? observations[0]?.content : undefined);
  const text = entry.message === null ? await jsonOf(client, message) : undefined;
  return { entry: text === undefined ? entry : { ...entry, message: JSON.parse(text) } };
}

/** Returns the uuid by which a repeated entry is recognised. */
export function uuidOf({ uuid }: SessionStoreEntry): string | undefined {
  return uuid !== '' && isTextWithin(uuid, 256) ? uuid : undefined;
}

function roleOf({ type, message }: SessionStoreEntry): 'user' | 'assistant' | undefined {
  const role = typeof message === 'object' && message !== null && 'role' in message ? message.role : undefined;
  return role === type && (role === 'user' || role === 'assistant') ? role : undefined;
}

function blocksOf(message: unknown): Block[] {
  const content = (message as { content?: unknown }).content;
  if (!Array.isArray(content)) return [];
  return content.filter((block) => typeof block === 'object' && block !== null);
}

function toolCallOf({ type, id, name, input }: Block): NonNullable<NewStep['actions']> {
  if (type !== 'tool_use' || !isCallId(id) || !isTextWithin(name, LIMITS.actionNameBytes)) return [];
  const content = input === undefined ? {} : { content: { json: JSON.stringify(input) } };
  return [{ type: 'tool_call', name, callId: id, ...content }];
}

function isCallId(id: unknown): id is string {
  return isTextWithin(id, LIMITS.callIdBytes);
}
