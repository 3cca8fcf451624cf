import { Code, ConnectError } from '@connectrpc/connect';
import { useState } from 'preact/hooks';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type Access, NOBODY, readAccess, writeAccess } from './access.ts';
import type { Api } from './client.ts';
import { useLoaded } from './context.ts';

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

/** Who calls, and in which namespace. Nothing on a server that asks for no key and has one namespace. */
export function CallerBar({ api, caller }: { readonly api: Api; readonly caller: Caller }) {
  const { name, namespace } = caller;
  const access = readAccess();
  const { value: choices = [namespace] } = useLoaded('', (signal) => namespacesOf(api, caller, signal));
  return (
    <>
      {choices.length > 1 ? (
        <select
          aria-label="Namespace"
          value={namespace}
          onChange={({ currentTarget: { value } }) => callAs({ ...access, namespace: value })}
        >
          {choices.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      ) : (
        access.token !== '' && <span class="dim">{namespace}</span>
      )}
      {access.token !== '' && (
        <button type="button" class="plain dim" title={`Forget the key of ${name}`} onClick={() => callAs(NOBODY)}>
          Sign out
        </button>
      )}
    </>
  );
}

/** The namespaces that the caller may choose from: of those that may see all, the ones that have data. */
async function namespacesOf({ admin }: Api, caller: Caller, signal: AbortSignal): Promise<readonly string[]> {
  const { namespace, namespaces, role } = caller;
  if (!namespaces.includes('*')) return namespaces;
  if (role !== Role.ADMIN) return [namespace];
  const found = await admin.listNamespaces({}, { signal });
  return [...new Set([...found.namespaces, namespace])].sort();
}

/** Loads the page again: all its calls are made anew. */
function callAs(access: Access): void {
  writeAccess(access);
  location.reload();
}
