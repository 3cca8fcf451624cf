import type { AgentInputItem } from '@openai/agents';
import { LIMITS } from '../../../gen/es/anabranch/v1/limits.js';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { isStorable, isTextWithin, jsonText } from '../json_text.ts';
import type { PatientClient } from '../patient_client.ts';
import { jsonOf, type NewStep } from '../step_batches.ts';

/** The page reads a reply of a model in the form of a response. */
const REPLY = { before: '{"output":[', after: ']}' };
const PRODUCED = new Set(['reasoning', 'compaction']);

/** Fields of items of this SDK and of the one in Python, which names some otherwise. */
interface AnyItem {
  readonly type?: unknown;
  readonly role?: unknown;
  readonly name?: unknown;
  readonly callId?: unknown;
  readonly call_id?: unknown;
  readonly arguments?: unknown;
  readonly input?: unknown;
}

/** Returns the step of an item. Throws TypeError for an item that JSON cannot hold. */
export function stepOf(item: AgentInputItem, stepNumber: bigint, call: string): NewStep {
  const json = jsonText(item, 'the item');
  const fields: AnyItem = item;
  const step = { stepNumber, labels: { call } };
  const callId = callOf(fields);
  if (!isProduced(fields)) {
    return { ...step, observations: [{ type: 'message', callId: callId ?? '', content: { json } }] };
  }
  const content = { json: `${REPLY.before}${json}${REPLY.after}` };
  const reply = { type: 'message', name: 'openai.responses', content };
  return { ...step, actions: [reply, ...(callId === undefined ? [] : toolCallOf(fields, callId))] };
}

/** Returns the item of a step; undefined for a step that a session has not written. */
export async function itemOf(client: PatientClient, step: Step): Promise<AgentInputItem | undefined> {
  const [reply] = step.actions;
  const [given] = step.observations;
  const json = await jsonOf(client, reply === undefined ? given?.content : reply.content);
  if (json === undefined) return undefined;
  return JSON.parse(reply === undefined ? json : json.slice(REPLY.before.length, -REPLY.after.length));
}

/** Whether the model has produced the item. */
function isProduced({ role, type }: AnyItem): boolean {
  return role === 'assistant' || (typeof type === 'string' && (PRODUCED.has(type) || type.endsWith('_call')));
}

function callOf({ call_id, callId }: AnyItem): string | undefined {
  return [call_id, callId].find((id): id is string => isTextWithin(id, LIMITS.callIdBytes));
}

function toolCallOf(item: AnyItem, callId: string): NonNullable<NewStep['actions']> {
  const name = typeof item.name === 'string' ? item.name : String(item.type).replace(/_call$/, '');
  // Such a call is in the reply only.
  if (!isTextWithin(name, LIMITS.actionNameBytes)) return [];
  const given = item.arguments ?? item.input;
  const content =
    typeof given === 'string' ? contentOf(given) : given == null ? undefined : { json: JSON.stringify(given) };
  return [{ type: 'tool_call', name, callId, ...(content === undefined ? {} : { content }) }];
}

function contentOf(text: string): { json: string } | { text: string } | undefined {
  try {
    JSON.parse(text);
    return { json: text };
  } catch {
    return isStorable(text) ? { text } : undefined;
  }
}
