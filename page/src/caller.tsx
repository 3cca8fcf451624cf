import { Code, ConnectError } from '@connectrpc/connect';
import { useState } from 'preact/hooks';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type Access, NOBODY, readAccess, writeAccess } from './access.ts';
import type { Api } from './client.ts';

/** Who the server takes this tab for. */
export interface Caller {
  readonly name: string;
  readonly role: Role;
  /** Those that the key is for. */
  readonly namespaces: readonly string[];
  readonly namespace: string;
}

/** Why the server serves this tab nothing. */
export interface Refused {
  readonly why: string;
}

/** What a page in a file, and a server that does not tell, shows: everything. */
const UNKNOWN: Caller = { name: '', role: Role.ADMIN, namespaces: [], namespace: '' };

const REFUSALS = [Code.Unauthenticated, Code.PermissionDenied, Code.InvalidArgument];

export async function readCaller({ server }: Api, signal: AbortSignal): Promise<Caller | Refused> {
  try {
    return (await server.getServerInfo({}, { signal })).caller ?? UNKNOWN;
  } catch (error) {
    const { code, rawMessage: why } = ConnectError.from(error);
    return REFUSALS.includes(code) ? { why } : UNKNOWN;
  }
}

/** Asks for a key, which is kept in this tab. */
export function KeyForm({ why }: Refused) {
  const [access, setAccess] = useState(readAccess());
  const enter = (event: Event) => {
    event.preventDefault();
    callAs({ token: access.token.trim(), namespace: access.namespace.trim() });
  };
  return (
    <section class="empty">
      <h1>An API key, please</h1>
      <p>{readAccess().token === '' ? 'This server shows its data only to those who have one.' : why}</p>
      <form class="key" onSubmit={enter}>
        <label>
          API key
          <input
            type="password"
            name="key"
            required
            autoComplete="off"
            spellcheck={false}
            value={access.token}
            onInput={({ currentTarget: { value: token } }) => setAccess({ ...access, token })}
          />
        </label>
        <label>
          Namespace
          <input
            name="namespace"
            placeholder="that of the key"
            autoComplete="off"
            spellcheck={false}
            value={access.namespace}
            onInput={({ currentTarget: { value: namespace } }) => setAccess({ ...access, namespace })}
          />
        </label>
        <button type="submit">Continue</button>
      </form>
      <p class="dim">
        The key stays in this tab until you close it. Operators create keys with <code>anabranch keys create</code>.
      </p>
    </section>
  );
}

/** Who calls, and in which namespace. Nothing on a server that asks for no key. */
export function CallerBar({ name, namespaces, namespace }: Caller) {
  const access = readAccess();
  if (access.token === '') return null;
  return (
    <>
      {namespaces.length > 1 ? (
        <select
          aria-label="Namespace"
          value={namespace}
          onChange={({ currentTarget: { value } }) => callAs({ ...access, namespace: value })}
        >
          {namespaces.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      ) : (
        <span class="dim">{namespace}</span>
      )}
      <button type="button" class="plain dim" title={`Forget the key of ${name}`} onClick={() => callAs(NOBODY)}>
        Sign out
      </button>
    </>
  );
}

/** Loads the page again: all its calls are made anew. */
function callAs(access: Access): void {
  writeAccess(access);
  location.reload();
}
