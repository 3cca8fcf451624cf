import { LIMITS } from '../../../gen/es/anabranch/v1/limits.js';
import type { ActionInit, ObservationInit } from '../../../src/client/step.ts';
import { isTextWithin } from '../json_text.ts';
import { roomOfShown } from '../step_batches.ts';

/** A message of LangChain, as far as steps show it. */
interface Message {
  readonly id?: unknown;
  readonly content: unknown;
  readonly tool_calls?: readonly { readonly id?: string; readonly name: string; readonly args: unknown }[];
  readonly tool_call_id?: unknown;
  getType(): string;
}

const MOST_SHOWN = 64;
const TEXT_BYTES = 32 * 1024;
const ROLES: Readonly<Record<string, string>> = { human: 'user', ai: 'assistant', system: 'system', tool: 'tool' };

/** A number for each message, by its id: another one when its text or its calls are others. */
export type Prints = ReadonlyMap<string, number>;

/**
 * Returns the messages whose numbers are not known as actions and observations, as which the page shows them. They are
 * never read back: the checkpoint has the messages themselves. Without known ones, returns the last message only: the
 * others may be old. Leaves out the oldest messages and the last calls for which a step has no room.
 */
export function shownMessages(
  value: unknown,
  known: Prints,
): { actions: ActionInit[]; observations: ObservationInit[] } {
  const [actions, observations]: [ActionInit[], ObservationInit[]] = [[], []];
  const messages = messagesOf(value);
  const fresh =
    known.size > 0
      ? messages.filter((message) => known.get(String(message.id)) !== printOf(message))
      : messages.slice(-1);
  const fits = roomOfShown();
  for (const message of fresh.slice(-MOST_SHOWN).reverse()) {
    const role = ROLES[message.getType()];
    if (role === 'assistant') actions.unshift(...actionsOf(message).filter(fits));
    else if (role !== undefined) observations.unshift(...[observationOf(message, role)].filter(fits));
  }
  return { actions, observations };
}

/** Returns the numbers of the messages that have an id. */
export function printsOf(value: unknown): Prints {
  return new Map(
    messagesOf(value).flatMap((message) => (typeof message.id === 'string' ? [[message.id, printOf(message)]] : [])),
  );
}

function printOf({ content, tool_calls: calls = [] }: Message): number {
  const text = typeof content === 'string' ? content : (JSON.stringify(content) ?? '');
  let print = 0;
  for (const part of calls.length > 0 ? [text, JSON.stringify(calls)] : [text]) {
    for (let i = 0; i < part.length; i += 1) print = (Math.imul(print, 31) + part.charCodeAt(i)) | 0;
  }
  return print;
}

function messagesOf(value: unknown): Message[] {
  const isMessage = (each: unknown): each is Message =>
    typeof (each as Partial<Message> | null)?.getType === 'function' && 'content' in (each as object);
  return Array.isArray(value) && value.every(isMessage) ? value : [];
}

function actionsOf({ content, tool_calls = [] }: Message): ActionInit[] {
  const calls = tool_calls.map(({ id = '', name, args }) => ({
    id,
    type: 'function',
    function: { name, arguments: JSON.stringify(args) ?? 'null' },
  }));
  const message = { role: 'assistant', content, ...(calls.length > 0 && { tool_calls: calls }) };
  const short = { role: 'assistant', content: shortened(content) };
  const json = shownJson({ choices: [{ message }] }, { choices: [{ message: short }] });
  return [
    { type: 'message', name: 'openai.chat', content: { json } },
    ...calls
      .filter(
        ({ id, function: { name } }) =>
          isTextWithin(id, LIMITS.callIdBytes) && isTextWithin(name, LIMITS.actionNameBytes),
      )
      .map(({ id, function: { name, arguments: given } }) => ({
        type: 'tool_call',
        name,
        callId: id,
        content: Buffer.byteLength(given) > TEXT_BYTES ? { text: shortened(given) } : { json: given },
      })),
  ];
}

function observationOf({ content, tool_call_id }: Message, role: string): ObservationInit {
  const callId = isTextWithin(tool_call_id, LIMITS.callIdBytes) ? tool_call_id : '';
  const answer = callId === '' ? {} : { tool_call_id: callId };
  const json = shownJson({ role, content, ...answer }, { role, content: shortened(content), ...answer });
  return { type: 'message', callId, content: { json } };
}

function shownJson(value: unknown, short: unknown): string {
  const json = JSON.stringify(value) ?? 'null';
  return Buffer.byteLength(json) > TEXT_BYTES ? JSON.stringify(short) : json;
}

function shortened(content: unknown): string {
  const text = typeof content === 'string' ? content : (JSON.stringify(content) ?? '');
  return `${text.slice(0, TEXT_BYTES / 8).toWellFormed()}…`;
}
