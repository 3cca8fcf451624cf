import { useEffect, useRef, useState } from 'preact/hooks';
import { useLoaded, usePage } from '../context.ts';
import { nameOf } from '../format.ts';
import { Labels } from '../home/home_view.tsx';
import { StatusMark } from '../status.tsx';
import { Table } from '../table.tsx';
import { Hits } from './hits.tsx';
import { findByName } from './read.ts';
import { parseScope, type Scope } from './scope.ts';
import './search.css';

/** How long the page waits for the next letter before it searches. */
const TYPING_MS = 200;

/** Finds runs and trajectories by name or label, and text in steps. */
export function SearchView() {
  const { address, set } = usePage();
  const text = address.query.get('q') ?? '';
  const where = address.query.get('in');
  const scope = parseScope(where);
  const [typed, setTyped] = useState(text);
  // Letters that were typed since the last search stay. Other changes of the address, as by Back, replace them.
  const searched = useRef(text);
  if (searched.current !== text) {
    searched.current = text;
    setTyped(text);
  }
  const search = (wanted: string) => {
    searched.current = wanted;
    set({ q: wanted }, { replace: true });
  };
  useEffect(() => {
    if (typed === text) return;
    const timer = setTimeout(() => search(typed), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <div class="search">
      <h1 class="only-read">Search</h1>
      <search>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            search(typed);
          }}
        >
          <input
            type="search"
            aria-label="search names, labels and text in steps"
            placeholder="Search names, labels and text in steps"
            maxLength={256}
            value={typed}
            ref={focusOnce}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
          <p class="dim">
            {scope.kind === 'everywhere' ? (
              'everywhere'
            ) : (
              <>
                in {scope.kind} {nameOf({ id: scope.id, name: '' })}{' '}
                <button type="button" class="plain" onClick={() => set({ in: undefined })}>
                  Search everywhere
                </button>
              </>
            )}
          </p>
        </form>
      </search>
      {text !== '' && (
        <>
          <NamedMatches text={text} scope={scope} />
          <Hits key={`${where} ${text}`} text={text} scope={scope} />
        </>
      )}
    </div>
  );
}

/** The field has the focus when the view appears. */
function focusOnce(input: HTMLInputElement | null): void {
  if (input !== null && input.dataset.focused === undefined) input.focus();
  if (input !== null) input.dataset.focused = '';
}

function NamedMatches({ text, scope }: { readonly text: string; readonly scope: Scope }) {
  const { api } = usePage();
  const { value, isOld, error } = useLoaded(`names ${scope.kind} ${scope.id} ${text}`, (signal) =>
    findByName(api, text, scope, signal),
  );
  if (error !== undefined) return <p class="problem">{error}</p>;
  if (value === undefined || value.runs.length + value.trajectories.length === 0) return null;
  return (
    <section aria-labelledby="named" aria-busy={isOld}>
      <h2 id="named">Names and labels</h2>
      <Table columns={['Name', 'Kind', 'Status', 'Labels']}>
        {value.runs.map(
          ({ run }) => run !== undefined && <NamedRow key={run.id} kind="run" to={`/runs/${run.id}`} named={run} />,
        )}
        {value.trajectories.map((each) => (
          <NamedRow key={each.id} kind="trajectory" to={`/trees/${each.id}`} named={each} />
        ))}
      </Table>
    </section>
  );
}

interface NamedRowProps {
  readonly kind: string;
  readonly to: string;
  readonly named: {
    readonly id: string;
    readonly name: string;
    readonly status: Parameters<typeof StatusMark>[0]['status'];
    readonly labels: Readonly<Record<string, string>>;
  };
}

function NamedRow({ kind, to, named }: NamedRowProps) {
  return (
    <tr>
      <th scope="row">
        <a href={to}>{nameOf(named)}</a>
      </th>
      <td class="dim">{kind}</td>
      <td>
        <StatusMark status={named.status} />
      </td>
      <td>
        <Labels labels={named.labels} />
      </td>
    </tr>
  );
}
