//! Output for people, from made-up reports: none of these figures was measured.

use super::*;
use crate::{Cpu, Figures, Host, Interface, Key, Latency, Loss, Point, Report};

fn report(instrument: &str, points: Vec<Point>) -> Report {
    Report {
        format: Report::FORMAT.to_owned(),
        instrument: instrument.to_owned(),
        command_line: ["thalweg", "bench", instrument, "--sizes", "1,64KiB"].map(str::to_owned).to_vec(),
        began: "2026-11-21T00:00:00Z".to_owned(),
        host: Host {
            name: "made-up".to_owned(),
            kernel: "6.18".to_owned(),
            cpu: "no processor".to_owned(),
            cpus: 2,
            affinity: "0-1".to_owned(),
            memory: 16_000_000_000,
            interface: Some(Interface { name: "lo".to_owned(), mtu: 65536, ..Interface::default() }),
            thalweg: "0.1.0".to_owned(),
            ..Host::default()
        },
        peer: None,
        points,
        warnings: vec!["the hypervisor took up to 3.0 % of a processor away (steal)".to_owned()],
    }
}

fn latency(key: Key, p50: f64) -> Point {
    let figures = [0.99 * p50, p50, 1.02 * p50].map(|p50| Figures {
        latency_us: Some(Latency {
            p50,
            p90: p50 * 1.1,
            p99: p50 * 2.0,
            p999: p50 * 9.0,
            max: p50 * 200.0,
            mean: p50,
            count: 9,
        }),
        cpu: Some(Cpu { process_percent: 98.76, system_percent: 101.0, seconds_per_gigabyte: None, ..Cpu::default() }),
        seconds: 1.0,
        ..Figures::default()
    });
    Point::new("latency", key, figures.to_vec(), vec![], None)
}

fn tcp(size: u64) -> Key {
    Key::new("tcp", "write", size)
}

fn shm(size: u64) -> Key {
    Key::new("shm", "copy", size).with_setting("wait", "poll")
}

fn goodput(key: Key, gbps: f64) -> Point {
    let figures = Figures {
        goodput_bits_per_second: Some(gbps * 1e9),
        copies_per_byte: Some(2.0),
        system_calls_per_megabyte: Some(31.25),
        cpu: Some(Cpu {
            process_percent: 180.0,
            system_percent: 199.5,
            seconds_per_gigabyte: Some(0.444),
            ..Cpu::default()
        }),
        loss: (key.link == "udp").then_some(Loss { sent: 1000, received: 995 }),
        seconds: 1.0,
        ..Figures::default()
    };
    Point::new("bandwidth", key, vec![figures], vec![], None)
}

fn conversation() -> Report {
    let why = "the other end (process 4711): it is gone, and no one knows why, which takes more than one line to say";
    let failed = Point::new("latency", shm(65536), vec![], vec![], Some(why.to_owned()));
    let mut noted = latency(shm(1), 0.2123);
    noted.notes.push("this stands in for that".to_owned());
    report("latency", vec![latency(tcp(1), 6.9), latency(tcp(65536), 14.666), noted, failed])
}

fn stream() -> Report {
    let points = [1500, 65536]
        .into_iter()
        .flat_map(|size| [goodput(tcp(size), 12.3), goodput(Key::new("udp", "write", size), 0.987)]);
    report("bandwidth", points.collect())
}

#[test]
fn latencies_in_a_terminal() {
    insta::assert_snapshot!(Table::format_report(&conversation()), @r"
                  p50      p90      p99    p99.9      max    CPU %   CPU %  spread
        size       µs       µs       µs       µs       µs  process  system       %
    tcp write
         1 B     6.90     7.59     13.8     62.1    1,380     98.8     101    3.00
      64 KiB     14.7     16.1     29.3      132    2,933     98.8     101    3.00
    shm copy, wait poll
         1 B    0.212    0.234    0.425     1.91     42.5     98.8     101    3.00
              this stands in for that
      64 KiB  the other end (process 4711): it is gone, and no one knows why, which
              takes more than one line to say

    warning: the hypervisor took up to 3.0 % of a processor away (steal)
    ");
}

#[test]
fn goodput_in_a_terminal() {
    insta::assert_snapshot!(Table::format_report(&stream()), @r"
                      line  copies      calls    CPU %   CPU %    CPU   loss  spread
        size  Gbit/s     %   /byte        /MB  process  system   s/GB      %       %
    tcp write
      1500 B    12.3     -    2.00       31.2      180     200  0.444      -       -
    udp write
      1500 B   0.987     -    2.00       31.2      180     200  0.444  0.500       -
    tcp write
      64 KiB    12.3     -    2.00       31.2      180     200  0.444      -       -
    udp write
      64 KiB   0.987     -    2.00       31.2      180     200  0.444  0.500       -

    warning: the hypervisor took up to 3.0 % of a processor away (steal)
    ");
}

#[test]
fn latencies_in_markdown() {
    insta::assert_snapshot!(report_markdown(&conversation()), @r"
    # thalweg bench latency

    `thalweg bench latency --sizes 1,64KiB`

    Begun 2026-11-21T00:00:00Z.

    - Warning: the hypervisor took up to 3.0 % of a processor away (steal)

    ## tcp write

    | size | p50 µs | p90 µs | p99 µs | p99.9 µs | max µs | CPU % process | CPU % system | spread % |
    | --: | --: | --: | --: | --: | --: | --: | --: | --: |
    | 1 B | 6.90 | 7.59 | 13.8 | 62.1 | 1,380 | 98.8 | 101 | 3.00 |
    | 64 KiB | 14.7 | 16.1 | 29.3 | 132 | 2,933 | 98.8 | 101 | 3.00 |

    ## shm copy, wait poll

    | size | p50 µs | p90 µs | p99 µs | p99.9 µs | max µs | CPU % process | CPU % system | spread % |
    | --: | --: | --: | --: | --: | --: | --: | --: | --: |
    | 1 B | 0.212 | 0.234 | 0.425 | 1.91 | 42.5 | 98.8 | 101 | 3.00 |

    - 64 KiB: the other end (process 4711): it is gone, and no one knows why, which takes more than one line to say
    - 1 B: this stands in for that

    ## Host

    |  |  |
    | --- | --- |
    | host | made-up |
    | kernel | 6.18 |
    | processors | 2 × no processor |
    | of these allowed | 0-1 |
    | memory | 16.0 GB |
    | interface | lo, no driver, MTU 65536, no line rate |
    | Thalweg | 0.1.0 |
    ");
}

#[test]
fn goodput_in_markdown_leaves_out_absent_figures() {
    let text = report_markdown(&stream());
    let tcp = text.lines().find(|line| line.starts_with("| size")).unwrap();
    assert!(tcp.contains("Gbit/s") && !tcp.contains("loss") && !tcp.contains("line"), "{tcp}");
    assert!(text.contains("loss %"), "{text}");
}

#[test]
fn every_line_of_every_table_fits_a_terminal() {
    for report in [conversation(), stream()] {
        let text = Table::format_report(&report);
        assert!(text.lines().all(|line| line.chars().count() <= thalweg_text::TEXT_COLUMNS), "{text}");
    }
}

/// Report with names that would be HTML, Markdown, SVG, or move a cursor, if they were not escaped.
fn hostile() -> Report {
    let nasty = "<script src='https://evil.example/x.js'></script>|`[a](b)\u{1b}[2J\n\"&]]>";
    let mut report = conversation();
    report.instrument = nasty.to_owned();
    report.command_line.push(nasty.to_owned());
    report.host.name = nasty.to_owned();
    report.peer = Some(Host { kernel: nasty.to_owned(), ..Host::default() });
    report.warnings.push(nasty.to_owned());
    report.began = nasty.to_owned();
    for point in &mut report.points {
        point.key.link = nasty.to_owned();
        point.key.settings.insert(nasty.to_owned(), nasty.to_owned());
        point.notes.push(nasty.to_owned());
        point.error = Some(nasty.to_owned());
    }
    report
}

#[test]
fn a_page_needs_nothing_from_anywhere() {
    for report in [conversation(), stream(), hostile()] {
        let page = report_html(&report).unwrap();
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        let tags: Vec<&str> = outside.split('<').skip(1).filter_map(|tag| tag.split('>').next()).collect();
        // The contents lead to places in the page itself.
        let tags = tags.into_iter().filter(|tag| !tag.starts_with("a href=\"#s") && *tag != "/a");
        for tag in tags {
            let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
            assert!(!["script", "link", "img", "iframe", "object", "a", "image", "use"].contains(&name), "<{tag}>");
            assert!(!tag.contains("href") && !tag.contains("src=") && !tag.contains("url("), "<{tag}>");
        }
        assert!(page.contains("<svg") && page.contains("prefers-color-scheme: dark"));
    }
}

#[test]
fn names_from_outside_stay_names() {
    let report = hostile();
    let page = report_html(&report).unwrap();
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && page.contains("&lt;script"));
    let text = report_markdown(&report);
    // A code span contains no HTML.
    let outside: String = text.lines().filter(|line| !line.starts_with('`')).collect();
    assert!(!text.contains('\u{1b}') && !outside.replace("\\<", "").contains('<'), "{text}");
    let terminal = Table::format_report(&report);
    assert!(!terminal.contains('\u{1b}'), "{terminal:?}");
    let picture = report_svg(&report).unwrap();
    assert!(!picture.contains("<script") && !picture.contains('\u{1b}'), "{picture}");
}

fn timed(instrument: &str, key: Key, gbps: f64, p50: f64) -> Point {
    let latency = Latency { p50, ..Latency::default() };
    let figures = Figures {
        goodput_bits_per_second: Some(gbps * 1e9),
        latency_us: (p50 > 0.0).then_some(latency),
        seconds: 1.0,
        ..Figures::default()
    };
    Point::new(instrument, key, vec![figures], vec![], None)
}

/// The table of each of these shows goodput first, and some of their points have no latency.
#[test]
fn a_picture_shows_the_principal_figure_of_its_instrument() {
    for (instrument, unit, value) in [("copy", "GB/s", "1.25"), ("file", "MB/s", "1,250"), ("serve", "MB/s", "1,250")] {
        let points = [(4096, 0.0), (65536, 12.0)]
            .map(|(size, p50)| timed(instrument, Key::new("memory", "copy", size), 10.0, p50));
        let drawn = report_svg(&report(instrument, points.to_vec())).unwrap();
        assert!(drawn.contains(&format!("Goodput ({unit})")) && !drawn.contains("Median latency"), "{instrument}");
        assert!(drawn.contains(">\n4K\n<") && drawn.contains(">\n64K\n<"), "{drawn}");
        let only = report_svg(&report(instrument, points[..1].to_vec())).unwrap();
        assert!(only.contains(value), "{only}");
    }
    let drawn = report_svg(&report("latency", vec![latency(tcp(1), 6.9), latency(tcp(64), 7.0)])).unwrap();
    assert!(drawn.contains("Median latency"));
}

#[test]
fn pictures_are_drawn_of_anything_that_has_a_figure() {
    assert_eq!(report_svg(&report("latency", vec![])), Err(PlotError::Empty));
    for sizes in [vec![0], vec![1], vec![0, 1], vec![1, u64::MAX], vec![1500, 1501], vec![1 << 62, 1 << 63]] {
        for value in [1e-9, 1.0, 1e300, f64::MAX] {
            let points = sizes.iter().map(|size| latency(tcp(*size), value)).collect();
            let drawn = report_svg(&report("latency", points)).unwrap();
            assert!(drawn.starts_with("<svg") && !drawn.contains("NaN"), "{sizes:?} {value}");
            let points = sizes.iter().map(|size| goodput(tcp(*size), value)).collect();
            assert!(report_svg(&report("bandwidth", points)).unwrap().starts_with("<svg"));
        }
    }
    assert!(
        report_svg(&report("latency", vec![latency(tcp(1), 0.0)])).is_ok(),
        "nothing to draw on a logarithmic axis"
    );
    let many = (0..200).map(|n| goodput(tcp(64).with_setting("n", n), f64::from(n))).collect();
    assert!(report_svg(&report("bandwidth", many)).is_ok());
}
