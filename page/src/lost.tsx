/** Says that values are old. They stay on screen, and the page reconnects by itself. */
export function Lost({ stale }: { readonly stale: boolean }) {
  return <span role="status">{stale && <span class="label error">connection lost, values are old</span>}</span>;
}
