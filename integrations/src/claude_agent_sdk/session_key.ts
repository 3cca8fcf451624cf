import type { SessionKey } from '@anthropic-ai/claude-agent-sdk';
import { v5 } from 'uuid';
import { checkName } from '../json_text.ts';

const PROJECTS = '8055fc2d-686e-4e19-9501-b9be58256f79';
const INTEGRATION = 'claude-agent-sdk';
const NAME_BYTES = 256;

/** Throws unless a key can be stored. */
export function checkKey({ projectKey, sessionId, subpath }: SessionKey): void {
  checkProject(projectKey);
  checkName(sessionId, 'sessionId');
  if (subpath !== undefined) checkName(subpath, 'subpath');
}

export function checkProject(projectKey: string): void {
  checkName(projectKey, 'projectKey', 239);
}

/** Returns the id of the trajectory of a transcript. */
export function idOf({ projectKey, sessionId, subpath }: SessionKey): string {
  const session = v5(sessionId, v5(projectKey, PROJECTS));
  return subpath === undefined ? session : v5(subpath, session);
}

export function taskOf(projectKey: string): string {
  return `${INTEGRATION}/${projectKey}`;
}

/** Returns the labels of the transcripts of a session, or of all sessions. */
export function labelsOf({ sessionId, subpath }: Partial<SessionKey> = {}): Record<string, string> {
  return {
    integration: INTEGRATION,
    ...(sessionId === undefined ? {} : { session: sessionId }),
    ...(subpath === undefined ? {} : { subpath }),
  };
}

export function nameOf({ sessionId, subpath }: SessionKey): string {
  const name = subpath === undefined ? sessionId : `${sessionId}/${subpath}`;
  const bytes = Buffer.from(name);
  if (bytes.byteLength <= NAME_BYTES) return name;
  // A character that was cut in the middle is left out.
  return bytes
    .subarray(0, NAME_BYTES)
    .toString()
    .replace(/\uFFFD+$/, '');
}
