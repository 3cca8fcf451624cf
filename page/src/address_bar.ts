/** What the page shows is in its address. A page in a file has it behind `#`, because its path names the file. */

function isFile(): boolean {
  return location.protocol === 'file:';
}

/** Returns path and query of what is shown. */
export function readShown(): string {
  return isFile() ? location.hash.slice(1) : location.pathname + location.search;
}

/** Writes path and query into the address. `replace` adds no entry to the history. */
export function writeShown(shown: string, { replace }: { readonly replace: boolean }): void {
  const address = isFile() ? `#${shown}` : shown;
  if (replace) history.replaceState(null, '', address);
  else history.pushState(null, '', address);
}
