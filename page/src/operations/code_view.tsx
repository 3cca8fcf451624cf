import { useRef, useState } from 'preact/hooks';
import type { Code } from './code.ts';

const LANGUAGES = ['TypeScript', 'Python', 'CLI'] as const;

/** A program in the language that a person chooses, with a button that copies it. */
export function CodeView({ code }: { readonly code: Code }) {
  const [language, setLanguage] = useState<keyof Code>('TypeScript');
  const [copied, setCopied] = useState('');
  const text = useRef<HTMLPreElement>(null);
  const copy = async () => {
    setCopied((await copyText(code[language], text.current)) ? 'Copied' : 'Selected: copy it with the keyboard');
  };
  const choose = (wanted: keyof Code) => {
    setLanguage(wanted);
    setCopied('');
  };
  return (
    <div class="code-view">
      <div class="answers">
        <fieldset>
          <legend class="only-read">language</legend>
          {LANGUAGES.map((each) => (
            <label key={each}>
              <input type="radio" name="language" checked={each === language} onChange={() => choose(each)} /> {each}
            </label>
          ))}
        </fieldset>
        <span class="space" />
        <span class="dim" role="status">
          {copied}
        </span>
        <button type="button" onClick={copy}>
          Copy
        </button>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard */}
      <pre class="code" ref={text} tabIndex={0}>
        {code[language]}
      </pre>
    </div>
  );
}

/** Browsers give the clipboard only to pages from this machine or by TLS. Elsewhere the text is selected. */
async function copyText(text: string, shown: HTMLElement | null): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    if (shown !== null) getSelection()?.selectAllChildren(shown);
    return false;
  }
}
