import { useEffect } from 'preact/hooks';
import type { Api } from './api.ts';
import { CompareView } from './compare/compare_view.tsx';
import { type Context, ContextProvider, useAddress } from './context.ts';
import { HomeView } from './home/home_view.tsx';
import { GroupView } from './rollout/group_view.tsx';
import { RolloutView } from './rollout/rollout_view.tsx';
import { RunView } from './run/run_view.tsx';
import { TreeView } from './tree/tree_view.tsx';

export function App({ api, canWrite }: { readonly api: Api; readonly canWrite: boolean }) {
  const { address, go, set } = useAddress();
  useEffect(() => followLinks(go), [go]);
  const context: Context = { api, canWrite, address, go, set };
  return (
    <ContextProvider value={context}>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href="/">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M3 21h9c5 0 4-11 9-11h4M12 21h17" />
          </svg>
          Anabranch
        </a>
        <span class="space" />
        <a class="dim" href="/docs.txt" target="_blank" rel="noreferrer">
          API reference
        </a>
      </header>
      <main id="main" tabIndex={-1}>
        <View address={address} />
      </main>
    </ContextProvider>
  );
}

function View({ address }: Pick<Context, 'address'>) {
  if (address.view === 'home') return <HomeView />;
  if (address.view === 'compare') return <CompareView />;
  if (address.view === 'run') return <RunView key={address.id} id={address.id} />;
  if (address.view === 'group') return <GroupView key={address.id} id={address.id} />;
  if (address.view === 'rollout') return <RolloutView key={address.id} id={address.id} />;
  if (address.view === 'tree') return <TreeView key={address.id} id={address.id} />;
  return (
    <section class="empty">
      <h1>Nothing is shown at this address</h1>
      <p>
        <a href="/">Runs and trees</a>
      </p>
    </section>
  );
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
