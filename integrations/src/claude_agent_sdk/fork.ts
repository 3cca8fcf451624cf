import { randomUUID } from 'node:crypto';
import type { SessionStoreEntry } from '@anthropic-ai/claude-agent-sdk';
import { v5 } from 'uuid';
import type { Fork } from './entry.ts';

/** Types of entries that are parts of the conversation. */
const CONVERSATION = new Set(['user', 'assistant', 'attachment', 'system', 'progress']);

/** An entry and the number of its step. */
export interface NumberedEntry {
  readonly entry: SessionStoreEntry;
  readonly stepNumber: bigint;
}

/** Returns the uuid in a fork of an entry that it shares. `id`: of the trajectory of the fork. */
export function forkedUuid(uuid: string, id: string): string {
  return v5(uuid, id);
}

/** Whether an entry is a part of the conversation that forks share. */
export function isShared({ type, uuid, isSidechain }: SessionStoreEntry): boolean {
  return CONVERSATION.has(type) && typeof uuid === 'string' && isSidechain !== true;
}

/** Returns the entries that a fork shares, with new uuids: as the SDK copies them when it forks a session. */
export function forkedEntries(entries: readonly NumberedEntry[], fork: Fork, id: string): NumberedEntry[] {
  const shared = entries.filter(({ entry }) => isShared(entry));
  const byUuid = new Map(shared.map(({ entry }) => [entry.uuid, entry]));
  const kept = shared.filter(({ entry }) => entry.type !== 'progress');
  return kept.map(({ entry, stepNumber }, i) => {
    const { teamName: _1, agentName: _2, slug: _3, sourceToolAssistantUUID: _4, ...rest } = entry;
    const uuid = entry.uuid ?? '';
    const copy: SessionStoreEntry = {
      ...rest,
      uuid: forkedUuid(uuid, id),
      parentUuid: parentOf(entry, byUuid, id),
      logicalParentUuid: logicalParentOf(entry, byUuid, id),
      sessionId: fork.sessionId,
      isSidechain: false,
      forkedFrom: { sessionId: fork.from, messageUuid: uuid },
    };
    if (i === kept.length - 1) copy.timestamp = fork.timestamp;
    return { entry: copy, stepNumber };
  });
}

/** Returns the new uuid of the nearest ancestor that is no progress. */
function parentOf(
  { parentUuid }: SessionStoreEntry,
  byUuid: ReadonlyMap<unknown, SessionStoreEntry>,
  id: string,
): string | null {
  const passed = new Set<unknown>();
  for (let at = parentUuid; typeof at === 'string' && !passed.has(at); at = byUuid.get(at)?.parentUuid) {
    passed.add(at);
    const ancestor = byUuid.get(at);
    if (ancestor === undefined) return null;
    if (ancestor.type !== 'progress') return forkedUuid(at, id);
  }
  return null;
}

function logicalParentOf(
  { logicalParentUuid: logical }: SessionStoreEntry,
  byUuid: ReadonlyMap<unknown, SessionStoreEntry>,
  id: string,
): unknown {
  if (typeof logical !== 'string' || logical === '') return logical ?? null;
  return byUuid.has(logical) ? forkedUuid(logical, id) : null;
}

/** Returns what the SDK adds behind the messages of a fork. */
export function entriesAfterFork(
  entries: readonly NumberedEntry[],
  { sessionId, from, timestamp }: Fork,
  title: string | undefined,
): SessionStoreEntry[] {
  const added: SessionStoreEntry[] = [];
  const replacements = entries.flatMap(({ entry }) =>
    entry.type === 'content-replacement' && entry.sessionId === from && Array.isArray(entry.replacements)
      ? entry.replacements
      : [],
  );
  if (replacements.length > 0) {
    added.push({ type: 'content-replacement', sessionId, replacements, uuid: randomUUID(), timestamp });
  }
  const old = lastText(entries, 'customTitle') ?? lastText(entries, 'aiTitle');
  const customTitle = title?.trim() || (old === undefined ? undefined : `${old} (fork)`);
  if (customTitle !== undefined) {
    added.push({ type: 'custom-title', sessionId, customTitle, uuid: randomUUID(), timestamp });
  }
  return added;
}

function lastText(entries: readonly NumberedEntry[], field: string): string | undefined {
  const texts = entries.map(({ entry }) => entry[field]).filter((text) => typeof text === 'string' && text !== '');
  return texts.at(-1) as string | undefined;
}
