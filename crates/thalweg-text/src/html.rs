//! Self-contained pages: no server, no scripts, no fonts. Text is escaped here, except for arguments that are
//! documented as HTML.

use crate::tone::Tone;

/// Returns a page with this content, which is HTML; `style` is added after the style sheet that all pages have.
///
/// Classes with a style: `quiet` (paragraphs), `warnings` (lists), `figures`, `words`, `beside` and `facts` (tables).
pub fn render_page(title: &str, style: &str, body: &str) -> String {
    let title = escape_html(title);
    let (contents, body) = with_contents(body);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{contents}{body}</body>\n</html>\n"
    )
}

/// Returns a list of links to the sections of a page, empty for up to three sections, and the page with their targets.
fn with_contents(body: &str) -> (String, String) {
    const MAX_UNLISTED_SECTIONS: usize = 3;
    let mut out = String::with_capacity(body.len());
    let mut items = String::new();
    let mut sections = body.split("<h2>");
    out.push_str(sections.next().unwrap_or_default());
    for (number, section) in sections.enumerate() {
        let heading = section.split("</h2>").next().unwrap_or_default();
        items.push_str(&format!("<li><a href=\"#s{number}\">{heading}</a></li>\n"));
        out.push_str(&format!("<h2 id=\"s{number}\">{section}"));
    }
    let many = items.lines().count() > MAX_UNLISTED_SECTIONS;
    (if many { format!("<nav><ul>\n{items}</ul></nav>\n") } else { String::new() }, out)
}

/// Returns a paragraph of text.
pub fn paragraph_html(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escape_html(text))
}

/// Returns a list; an empty string if there are no items.
pub fn list_html(class: &str, items: impl IntoIterator<Item: AsRef<str>>) -> String {
    let items: String = items.into_iter().map(|item| format!("<li>{}</li>\n", escape_html(item.as_ref()))).collect();
    if items.is_empty() { items } else { format!("<ul class=\"{class}\">\n{items}</ul>\n") }
}

/// Returns a table whose verdicts are coloured ([`Tone::from_verdict`]), which may be wider than the page. Without headings it
/// has no head. The class `figures` aligns cells to the right, `beside` does so from the third column on.
pub fn table_html<H: AsRef<str>>(
    class: &str,
    headings: &[H],
    rows: impl IntoIterator<Item: AsRef<[String]>>,
) -> String {
    let head =
        if headings.is_empty() { String::new() } else { format!("<thead>{}</thead>\n", table_row("th", headings)) };
    let rows: String = rows.into_iter().map(|cells| table_row("td", cells.as_ref())).collect();
    format!("<div class=\"wide\"><table class=\"{class}\">\n{head}<tbody>\n{rows}</tbody>\n</table></div>\n")
}

fn table_row(tag: &str, cells: &[impl AsRef<str>]) -> String {
    let cells = cells.iter().map(AsRef::as_ref).map(|cell| match Tone::from_verdict(cell) {
        Some(tone) => format!("<{tag} class=\"{}\">{}</{tag}>", tone.css_class(), escape_html(cell)),
        None => format!("<{tag}>{}</{tag}>", escape_html(cell)),
    });
    format!("<tr>{}</tr>\n", cells.collect::<String>())
}

/// Returns a picture, which is SVG or other HTML, under its caption; an empty caption is left out.
pub fn figure_html(caption: &str, picture: &str) -> String {
    let caption = match caption {
        "" => String::new(),
        caption => format!("<figcaption>{}</figcaption>", escape_html(caption)),
    };
    format!("<figure>{caption}{picture}</figure>\n")
}

/// Returns a picture, which is SVG or other HTML, above sentences about it, those on its origin in a paragraph of their
/// own.
pub fn figure_with_notes_html(picture: &str, notes: &[String], origin: &[String]) -> String {
    let paragraphs = [("", notes), ("quiet", origin)].into_iter().filter(|(_, sentences)| !sentences.is_empty());
    let notes: String = paragraphs.map(|(class, sentences)| paragraph_html(class, &sentences.join(" "))).collect();
    let caption = if notes.is_empty() { notes } else { format!("<figcaption>{notes}</figcaption>") };
    format!("<figure>{picture}{caption}</figure>\n")
}

/// Returns text as HTML in which it is shown as it is; control characters other than line feeds are replaced.
pub fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            char if char.is_control() && char != '\n' => out.push('\u{fffd}'),
            char => out.push(char),
        }
    }
    out
}

/// Style sheet of all pages. Pictures contain their colours, for light paper; for dark paper the style sheet overrides
/// them.
const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_page_escapes_its_text() {
        let nasty = "<script>'\"&\u{1b}";
        let escaped = "&lt;script&gt;&#39;&quot;&amp;\u{fffd}";
        let parts = [
            paragraph_html("quiet", nasty),
            list_html("", [nasty]),
            table_html("figures", &[nasty], [[nasty.to_owned()]]),
            figure_html(nasty, "<svg/>"),
        ];
        assert!(parts.iter().all(|part| part.contains(escaped)), "{parts:?}");
        let page = render_page(nasty, "", &parts.concat());
        assert!(!page.contains("<script") && !page.contains('\u{1b}') && page.contains("<svg/>"));
    }

    #[test]
    fn a_page_of_many_sections_has_contents_and_verdicts_have_colours() {
        let sections: String = ["Queue", "A &lt;b&gt;", "Notes", "Host"].map(|it| format!("<h2>{it}</h2>\n")).concat();
        let verdicts = table_html("words", &["verdict"], [["worse".to_owned()], ["so so".to_owned()]]);
        let page = render_page("title", "", &(sections + &verdicts));
        assert!(page.contains("<li><a href=\"#s1\">A &lt;b&gt;</a></li>"), "{page}");
        assert!(page.contains("<h2 id=\"s1\">A &lt;b&gt;</h2>"), "{page}");
        assert!(page.contains("<td class=\"bad\">worse</td>") && page.contains("<td>so so</td>"), "{page}");
        assert!(!super::render_page("title", "", "<h2>Alone</h2>").contains("<nav>"));
    }

    #[test]
    fn empty_parts_take_no_place() {
        assert_eq!(list_html("warnings", &[] as &[&str]), "");
        assert_eq!(figure_html("", "<svg/>"), "<figure><svg/></figure>\n");
        let bare = table_html::<&str>("facts", &[], [["host".to_owned()]]);
        assert_eq!(
            bare,
            "<div class=\"wide\"><table class=\"facts\">\n<tbody>\n<tr><td>host</td></tr>\n</tbody>\n</table></div>\n"
        );
    }
}
