import { useLayoutEffect, useRef } from 'preact/hooks';

/** Returns true if a key is meant for the page: no modifier, and outside of fields that take text. */
export function isCommand({ target, ctrlKey, metaKey, altKey }: KeyboardEvent): boolean {
  if (ctrlKey || metaKey || altKey) return false;
  if (!(target instanceof Element)) return true;
  // The focus stays in a dialog that was closed until the page is drawn again.
  if (target.closest('dialog:not([open])') !== null) return true;
  return !target.matches('input:not([type=range]), select, textarea, dialog *');
}

/** Links of rows: those of tables, of matches, and of rollouts side by side. */
const ROW_LINKS = 'main .list tbody th a, main .hits li > a, main .sibling h2 a';

interface PageKeys {
  readonly onSearch: () => void;
  readonly onHelp: () => void;
}

/**
 * Keys of every view: `/` searches, `?` lists the keys, `j` and `k` go from row to row of lists. Arrows do so as well
 * while a row has the focus. The tree has rows of its own.
 */
export function usePageKeys(keys: PageKeys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.defaultPrevented || !isCommand(event)) return;
      const onRow = document.activeElement?.matches(ROW_LINKS) === true;
      const by = { j: 1, k: -1, ArrowDown: onRow ? 1 : 0, ArrowUp: onRow ? -1 : 0 }[event.key] ?? 0;
      if (event.key === '/') latest.current.onSearch();
      else if (event.key === '?') latest.current.onHelp();
      else if (by === 0 || !focusRow(by)) return;
      event.preventDefault();
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

/** Moves the focus by rows, from the first row if none has it. Returns false if the view has no rows. */
function focusRow(by: number): boolean {
  const links = [...document.querySelectorAll<HTMLElement>(ROW_LINKS)];
  const at = links.indexOf(document.activeElement as HTMLElement);
  const next = links[at === -1 ? 0 : at + by];
  next?.focus();
  return links.length > 0;
}
