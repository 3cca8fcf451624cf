import { useLayoutEffect } from 'preact/hooks';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { addressOf } from './address.ts';
import type { Api } from './api.ts';
import { CallerBar, KeyForm, readCaller } from './caller.tsx';
import { type Context, ContextProvider, useAddress, useLoaded } from './context.ts';
import { HomeView } from './home/home_view.tsx';
import { KeyList, useKeyList } from './key_list.tsx';
import { usePageKeys } from './keys.ts';
import { LATER, type ViewOfId } from './later.ts';
import { scopeOf } from './search/scope.ts';
import { SearchView } from './search/search_view.tsx';

export function App({ api, canWrite }: { readonly api: Api; readonly canWrite: boolean }) {
  const { address, go, set } = useAddress();
  useLayoutEffect(() => followLinks(go), [go]);
  const { value: caller } = useLoaded('', (signal) => readCaller(api, signal));
  const refused = caller !== undefined && 'why' in caller ? caller : undefined;
  const known = caller !== undefined && 'role' in caller ? caller : undefined;
  const role = canWrite ? (known?.role ?? Role.READ) : Role.READ;
  const context: Context = { api, role, address, go, set };
  const keyList = useKeyList();
  const search = addressOf('/search', { in: scopeOf(address) });
  usePageKeys({ onSearch: () => go(search), onHelp: keyList.show });
  return (
    <ContextProvider value={context}>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href="/" aria-label="Anabranch">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M3 21h9c5 0 4-11 9-11h4M12 21h17" />
          </svg>
          <span class="brand-name">Anabranch</span>
        </a>
        <span class="space" />
        {known !== undefined && <CallerBar api={api} caller={known} />}
        <a class="dim" href={search}>
          Search
        </a>
        <button type="button" class="plain dim" onClick={keyList.show}>
          Keys
        </button>
        <a class="dim" href="/docs" target="_blank" rel="noreferrer">
          API reference
        </a>
      </header>
      <main id="main" tabIndex={-1}>
        {refused === undefined ? <View address={address} /> : <KeyForm {...refused} />}
      </main>
      <KeyList dialog={keyList.dialog} />
    </ContextProvider>
  );
}

function View({ address: { view, id } }: Pick<Context, 'address'>) {
  const load = LATER[view];
  if (view === 'home') return <HomeView />;
  if (view === 'search') return <SearchView />;
  if (load !== undefined) return <LaterView key={view} id={id} load={load} />;
  return (
    <section class="empty">
      <h1>Nothing is shown at this address</h1>
      <p>
        <a href="/">Runs and trees</a>
      </p>
    </section>
  );
}

function LaterView({ id, load }: { readonly id: string; readonly load: () => Promise<ViewOfId> }) {
  const { value: Loaded, error } = useLoaded('', load);
  if (Loaded !== undefined) return <Loaded key={id} id={id} />;
  // Files of the page have other names after the server was replaced by another version.
  return error === undefined ? null : <p class="problem">{error}. Load the page again.</p>;
}

/** Links within the page change the address without loading the page again. */
function followLinks(go: Context['go']): () => void {
  const follow = (event: MouseEvent) => {
    const link = event.target instanceof Element ? event.target.closest('a') : null;
    const plain = event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
    if (link === null || !plain || event.defaultPrevented || link.target !== '' || link.hasAttribute('download'))
      return;
    if (link.origin !== location.origin || link.hash !== '') return;
    event.preventDefault();
    go(link.pathname + link.search);
    scrollTo(0, 0);
  };
  document.addEventListener('click', follow);
  return () => document.removeEventListener('click', follow);
}
